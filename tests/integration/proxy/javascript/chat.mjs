// ollama-js against the server of the first argument: prints what it was told as one JSON object.
import { Ollama } from 'ollama'

const [host, question] = process.argv.slice(2)
const client = new Ollama({ host })
const asked = {
  model: 'duo',
  messages: [{ role: 'user', content: question }],
  options: { temperature: 0, num_predict: 24 },
}

const whole = await client.chat(asked)
let streamed = ''
let last
for await (const part of await client.chat({ ...asked, stream: true })) {
  streamed += part.message.content
  last = part
}
const generated = await client.generate({ model: 'duo', prompt: question, options: asked.options })
const { models } = await client.list()
const missing = await client.chat({ ...asked, model: 'nope' }).then(
  () => 'answered',
  (error) => error.error ?? error.message,
)

console.log(
  JSON.stringify({
    whole: whole.message.content,
    streamed,
    generated: generated.response,
    last,
    models: models.map((model) => model.name),
    missing,
  }),
)
