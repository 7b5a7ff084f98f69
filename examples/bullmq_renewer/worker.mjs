// The Node side: takes jobs and completes them, and has a Python service do the long part in between.
//
//   node worker.mjs [Redis URL] [lock duration in ms] [stalled interval in ms]
//
// It renews no lock: as long as the Python service works on a job, that service keeps the job's lock, and no longer.
import { Worker } from 'bullmq';
import Redis from 'ioredis';

const [url = 'redis://localhost:6379', lockDuration = 30000, stalledInterval = 30000] = process.argv.slice(2);
const queue = 'videos';
const connection = new Redis(url, { maxRetriesPerRequest: null });

async function handOver(job, token) {
  // A worker uses one token for many jobs, one after another: it alone does not name this run.
  const answers = `${queue}-renewer:answer:${job.id}:${job.attemptsStarted}`;
  await connection.rpush(
    `${queue}-renewer:jobs`,
    JSON.stringify({ id: job.id, token, answers, data: job.data }),
  );
  const waiting = connection.duplicate(); // a blocked connection can do nothing else
  try {
    for (;;) {
      const answer = await waiting.blpop(answers, 1);
      if (answer) return JSON.parse(answer[1]);
      // The service died, or was stopped for too long: the job belongs to whoever takes it next.
      if ((await connection.get(`bull:${queue}:${job.id}:lock`)) !== token) throw new Error('the lock is gone');
    }
  } finally {
    waiting.disconnect();
  }
}

const worker = new Worker(queue, handOver, {
  connection,
  concurrency: 50,
  lockDuration: Number(lockDuration),
  stalledInterval: Number(stalledInterval),
  skipLockRenewal: true,
});
worker.on('active', (job) => console.log(`${job.id}: taken`));
worker.on('completed', (job, result) => console.log(`${job.id}: completed, ${JSON.stringify(result)}`));
worker.on('stalled', (id) => console.log(`${id}: stalled, back in the queue`));
worker.on('failed', (job, error) => console.log(`${job?.id}: failed, ${error.message}`));
worker.on('error', (error) => console.log(`error: ${error.message}`));

process.on('SIGTERM', async () => {
  await worker.close();
  process.exit(0);
});
