// A BullMQ process that does what it is told: one JSON line in, one JSON line out. Run by the tests beside this file.
//
//   node peer.mjs <node_modules folder> <Redis URL>
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [modules, url] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Queue, Worker } = require('bullmq');
const Redis = require('ioredis');

// Blocking reads need a client without a limit on retries.
const connection = new Redis(url, { maxRetriesPerRequest: null });
const queues = new Map();
const workers = new Map();
const taken = new Map();

function queueOf({ queue, prefix }) {
  const key = `${prefix}:${queue}`;
  if (!queues.has(key)) queues.set(key, new Queue(queue, { connection, prefix }));
  return queues.get(key);
}

const actions = {
  // Put a job in its queue; `id` may be left out.
  async add({ queue, prefix, id, options = {} }) {
    const job = await queueOf({ queue, prefix }).add('work', { some: 'data' }, { jobId: id, ...options });
    return job.id;
  },

  // Make a worker that fetches by hand (no processor) and renews nothing, or one that runs jobs by itself.
  async worker({ name, queue, prefix, runs = null, options = {} }) {
    const processor = runs === null ? null : () => new Promise((resolve) => setTimeout(() => resolve('done'), runs));
    const worker = new Worker(queue, processor, {
      connection, prefix, skipLockRenewal: runs === null, autorun: runs !== null, ...options,
    });
    const seen = { stalled: [], completed: [], failed: [], lockRenewalFailed: [], error: [] };
    worker.on('stalled', (id) => seen.stalled.push(id));
    worker.on('completed', (job) => seen.completed.push(job.id));
    worker.on('failed', (job) => seen.failed.push(job?.id));
    worker.on('lockRenewalFailed', (ids) => seen.lockRenewalFailed.push(...ids));
    worker.on('error', (error) => seen.error.push(String(error.message)));
    workers.set(name, { worker, seen });
    await worker.waitUntilReady();
    return worker.id;
  },

  // Take the next job; null when there is none.
  async take({ name, token }) {
    const job = await workers.get(name).worker.getNextJob(token, { block: false });
    if (!job) return null;
    taken.set(`${name} ${job.id}`, job);
    return { id: job.id, token: job.token };
  },

  // Finish a job that was taken; BullMQ refuses when the lock is not this token's.
  async complete({ name, id, token }) {
    await taken.get(`${name} ${id}`).moveToCompleted('done', token, false);
    return true;
  },

  // Check for stalled jobs now, and every `stalledInterval` from then on.
  async check({ name }) {
    await workers.get(name).worker.startStalledCheckTimer();
    return true;
  },

  // One check by hand, for a worker whose timer does not run.
  async checkOnce({ name }) {
    await workers.get(name).worker.moveStalledJobsToWait();
    return true;
  },

  async seen({ name }) {
    return workers.get(name).seen;
  },

  async job({ queue, prefix, id }) {
    const job = await queueOf({ queue, prefix }).getJob(id);
    if (!job) return null;
    return {
      state: await job.getState(), stalledCounter: job.stalledCounter, attemptsMade: job.attemptsMade,
      attemptsStarted: job.attemptsStarted, result: job.returnvalue ?? null,
    };
  },

  async remove({ queue, prefix, id }) {
    return queueOf({ queue, prefix }).remove(id);
  },

  // Renew as this runtime does: its own script, arguments and packing. The ids that were not renewed.
  async extendLocks({ name, ids, tokens, duration }) {
    return workers.get(name).worker.extendJobLocks(ids, tokens, duration);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { action, ...rest } = JSON.parse(line);
  let reply;
  try {
    reply = { value: (await actions[action](rest)) ?? null };
  } catch (error) {
    reply = { error: String(error.message) };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
process.exit(0);
