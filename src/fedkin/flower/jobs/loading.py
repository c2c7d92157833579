"""From a TOML file to a job."""

import tomllib
from pathlib import Path

from fedkin.errors import InputError
from fedkin.flower.jobs.advice import AdviceJob, check_advice_job
from fedkin.flower.jobs.everyone import EveryoneJob, check_everyone_job
from fedkin.flower.jobs.options import OWN, VALIDATION_FRACTION, federation_options
from fedkin.flower.jobs.study import StudyJob
from fedkin.flower.jobs.tables import TableJob, check_table_job
from fedkin.studies.study_file import check_study


def load_job(path: Path) -> StudyJob | TableJob | EveryoneJob | AdviceJob:
    """Read a job.

    It is on tables if it names the center's own (`validation`), the question whether to join if it names all
    rows of the owner (`own`), everyone's question if the nodes hold rows out (`validation-fraction`), and
    otherwise a study.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the job {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    options = federation_options(content.pop("federation", {}), str(path))
    if OWN in content:
        return check_advice_job(content, options, path)
    if VALIDATION_FRACTION in content:
        return check_everyone_job(content, options, path)
    if "validation" in content:
        return check_table_job(content, options, path)
    return StudyJob(check_study(content, str(path)), options)
