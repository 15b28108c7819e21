"""What the errors of a SuperLink or SuperNode mean: their own texts speak of a database.

Checked against Flower 1.41 and 1.42: `flwr.common.constant.ErrorCode`.
"""

from flwr.common.constant import ErrorCode

MEANINGS = {
    ErrorCode.MESSAGE_UNAVAILABLE: "the message to it is no longer kept: it took too long",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply came too late",
    ErrorCode.NODE_UNAVAILABLE: "it was ended, or nothing was heard of it for a while",
    ErrorCode.CLIENT_APP_CRASHED: "its process for the work ended before the reply was there",
}
