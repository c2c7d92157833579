from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def ping(message, context):
    return Message(message.content, reply_to=message)
