// The official JavaScript clients against a running server: node client.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const url = process.argv[2];
const model = "spark-mini";
const oai = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const ant = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });

const schema = {
  type: "object",
  properties: { pattern: { type: "string", description: "Pattern" }, path: { type: "string", description: "Where to search" } },
  required: ["pattern"],
};
const search = "Search for TODO in test.";
const result = '["test/server.txt:52"]';
const off = { thinking: { type: "disabled" } };

const flows = {
  async chat() {
    const ask = { model, messages: [{ role: "user", content: "What is 2 + 3?" }], temperature: 0, max_tokens: 60 };
    const whole = await oai.chat.completions.create(ask);
    assert.match(whole.choices[0].message.content, /5/);
    let text = "";
    for await (const chunk of await oai.chat.completions.create({ ...ask, stream: true })) text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, whole.choices[0].message.content);
  },
  async chatTools() {
    const messages = [{ role: "user", content: search }];
    const tools = [{ type: "function", function: { name: "search_code", description: "Search the source code", parameters: schema } }];
    const ask = { model, tools, temperature: 0, max_tokens: 120, ...off };
    const final = await oai.chat.completions.stream({ ...ask, messages }).finalChatCompletion();
    const call = final.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "search_code");
    assert.equal(JSON.parse(call.function.arguments).pattern, "TODO");
    messages.push(final.choices[0].message, { role: "tool", tool_call_id: call.id, content: result });
    const answer = await oai.chat.completions.create({ ...ask, messages });
    assert.match(answer.choices[0].message.content, /test\/server\.txt/);
  },
  async structured() {
    const person = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
    const answer = await oai.chat.completions.create({
      model, temperature: 1.5, seed: 3, max_tokens: 300, ...off,
      messages: [{ role: "user", content: "Return the fields name, age as JSON: Julia Jones is 64 years old." }],
      response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
    });
    const got = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(got).sort(), ["age", "name"]);
    assert.ok(Number.isInteger(got.age));
  },
  async responses() {
    const ask = { model, temperature: 0, max_output_tokens: 60, reasoning: { effort: "none" } };
    const first = await oai.responses.create({ ...ask, input: "What is 2 + 3?" });
    assert.match(first.output_text, /5/);
    const kinds = [];
    let text = "";
    for await (const event of await oai.responses.create({ ...ask, input: "How do you work?", previous_response_id: first.id, stream: true })) {
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(kinds[0], "response.created");
    assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
    assert.ok(text.length > 0);
    await oai.responses.delete(first.id);
    await assert.rejects(oai.responses.retrieve(first.id), OpenAI.NotFoundError);
  },
  async messages() {
    const ask = { model, max_tokens: 60, temperature: 0, messages: [{ role: "user", content: "What is 2 + 3?" }], ...off };
    const whole = await ant.messages.create(ask);
    assert.match(whole.content[0].text, /5/);
    const final = await ant.messages.stream(ask).finalMessage();
    assert.equal(final.content[0].text, whole.content[0].text);
    const count = await ant.messages.countTokens({ model, messages: ask.messages, ...off });
    assert.equal(count.input_tokens, whole.usage.input_tokens);
  },
  async messagesTools() {
    const messages = [{ role: "user", content: search }];
    const ask = { model, max_tokens: 2000, temperature: 0, thinking: { type: "enabled", budget_tokens: 1024 }, tools: [{ name: "search_code", description: "Search the source code", input_schema: schema }] };
    const m = await ant.messages.stream({ ...ask, messages }).finalMessage();
    assert.deepEqual(m.content.map((b) => b.type), ["thinking", "tool_use"]);
    messages.push({ role: "assistant", content: m.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: m.content[1].id, content: result }] });
    const answer = await ant.messages.create({ ...ask, messages });
    assert.match(answer.content.at(-1).text, /test\/server\.txt/);
  },
  async errors() {
    await assert.rejects(oai.chat.completions.create({ model: "nope", messages: [{ role: "user", content: "x" }] }), OpenAI.NotFoundError);
    await assert.rejects(ant.messages.create({ model: "nope", max_tokens: 5, messages: [{ role: "user", content: "x" }] }), Anthropic.NotFoundError);
    await assert.rejects(ant.messages.create({ model, max_tokens: 5, messages: [] }), Anthropic.BadRequestError);
  },
};

let failed = 0;
for (const [name, flow] of Object.entries(flows)) {
  const begin = Date.now();
  try {
    await flow();
    console.log(`javascript ${name}: ok (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (e) {
    failed++;
    console.log(`javascript ${name}: FAILED`);
    console.error(e);
  }
}
console.log(`javascript: ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
