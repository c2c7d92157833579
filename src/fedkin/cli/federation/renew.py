"""`fedkin federation renew`: a new certificate of the server."""

from fedkin.cli.federation.options import LOCAL_HOSTS, DaysOption, DirectoryArgument, HostOption
from fedkin.cli.output import JsonOption, print_json, print_result
from fedkin.flower import certificates
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import Layout


def renew(
    directory: DirectoryArgument,
    host: HostOption = None,
    days: DaysOption = certificates.SERVER_DAYS,
    json: JsonOption = False,
) -> None:
    """Renew the server's certificate, for the same names or for others; nodes need no change.

    The SuperLink uses it from its next start.
    """
    require_flower()
    layout = Layout(directory)
    layout.read()
    if host:
        hosts = tuple(dict.fromkeys([*host, *LOCAL_HOSTS]))
    else:
        hosts = certificates.describe(layout.server_certificate).hosts
    certificates.make_server_certificate(
        layout.authority,
        layout.authority_key,
        hosts,
        layout.server_certificate,
        layout.server_key,
        days,
    )
    made = certificates.describe(layout.server_certificate)
    if json:
        answer = {"hosts": list(made.hosts), "expires": made.expires.isoformat()}
        print_json(answer, schema="federation.renew/1")
        return
    print_result(
        f"new certificate for {', '.join(made.hosts)}, valid until {made.expires:%Y-%m-%d}: restart the "
        "SuperLink to use it"
    )
