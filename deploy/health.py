"""Is the server on this machine well? `health.py PORT`: exit code 0 if GET /health answers 200."""

import http.client
import ssl
import sys
from urllib.request import urlopen

# Asked over the loopback interface: no certificate is needed to know who answers.
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE


def is_well(port: int) -> bool:
    """Whether the server answers, with TLS or (insecure=true) without."""
    for scheme in ("https", "http"):
        try:
            url = f"{scheme}://127.0.0.1:{port}/health"
            with urlopen(url, timeout=4, context=UNVERIFIED) as answer:  # noqa: S310 (schemes above)
                return answer.status == 200
        except (OSError, http.client.HTTPException):
            continue
    return False


if __name__ == "__main__":
    sys.exit(0 if is_well(int(sys.argv[1])) else 1)
