"""Small encoded images and Parquet tables of them, for the tests of this folder."""

import io
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from PIL import Image


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def parquet_table(
    blobs: Sequence[bytes | None], labels: Sequence[object], classes: Sequence[str] | None = None
) -> pa.Table:
    images = pa.array(
        [{"bytes": blob, "path": f"{i}.png"} for i, blob in enumerate(blobs)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": images, "label": pa.array(labels)})
    if classes is not None:
        features = {
            "image": {"_type": "Image"},
            "label": {"names": list(classes), "_type": "ClassLabel"},
        }
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    return table
