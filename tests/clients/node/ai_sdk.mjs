// Vercel's AI SDK over one of its providers: a loop with a tool, whole and streamed, and a second turn of the conversation.
//     node ai_sdk.mjs PROVIDER URL MODEL
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const [provider, url, name] = process.argv.slice(2);
const options = { baseURL: `${url}/v1`, apiKey: 'none' };
const model = {
  responses: () => createOpenAI(options)(name),
  chat: () => createOpenAI(options).chat(name),
  compatible: () => createOpenAICompatible({ name: 'server', ...options })(name),
  anthropic: () => createAnthropic(options)(name),
}[provider]();
const seen = [];
const look = tool({
  description: 'Looks at a place',
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => {
    seen.push(place);
    return 'a stone';
  },
});
const user = { role: 'user', content: 'What is there?' };
const how = { model, tools: { look }, stopWhen: stepCountIs(4), maxRetries: 0 };
const whole = await generateText({ ...how, messages: [user] });
const messages = [user, ...whole.response.messages, { role: 'user', content: 'And now?' }];
const again = await generateText({ ...how, messages });
const stream = streamText({ ...how, messages: [user], onError: ({ error }) => { throw error; } });
let streamed = '';
for await (const text of stream.textStream) streamed += text;
const reasoning = await stream.reasoningText;
console.log(JSON.stringify({ whole: whole.text, again: again.text, streamed, reasoning, seen }));
