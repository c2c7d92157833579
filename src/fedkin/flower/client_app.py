"""What Flower's own SuperNode loads on a node: `node.answer` answers every kind of message."""

from flwr.clientapp import ClientApp

from fedkin.flower.node import answer

app = ClientApp()
app.train()(answer)
app.evaluate()(answer)
app.query()(answer)
