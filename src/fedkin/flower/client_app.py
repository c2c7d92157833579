"""What Flower loads on a node: every kind of message is answered by `node.answer`."""

from flwr.clientapp import ClientApp

from fedkin.flower.node import answer

app = ClientApp()
app.train()(answer)
app.evaluate()(answer)
app.query()(answer)
