"""Is the server on this machine well? `health.py PORT`: exit code 0 if GET /health answers 200."""

import http.client
import ssl
import sys
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

# Asked over the loopback interface: no certificate is needed to know who answers.
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE
# A proxy of the environment, as Docker puts it there, does not lead to this machine.
DIRECT = build_opener(ProxyHandler({}), HTTPSHandler(context=UNVERIFIED))


def is_well(port: int) -> bool:
    """Whether the server answers, with TLS or (insecure=true) without."""
    for scheme in ("https", "http"):
        try:
            url = f"{scheme}://127.0.0.1:{port}/health"
            with DIRECT.open(url, timeout=4) as answer:
                return answer.status == 200
        except (OSError, http.client.HTTPException):
            continue
    return False


if __name__ == "__main__":
    sys.exit(0 if is_well(int(sys.argv[1])) else 1)
