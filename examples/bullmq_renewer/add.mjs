// Put jobs in the queue.
//
//   node add.mjs [Redis URL] [how many] [how many seconds each takes]
import { Queue } from 'bullmq';
import Redis from 'ioredis';

const [url = 'redis://localhost:6379', count = 3, seconds = 60] = process.argv.slice(2);
const connection = new Redis(url, { maxRetriesPerRequest: null });
const queue = new Queue('videos', { connection });
for (let number = 0; number < Number(count); number += 1) {
  const job = await queue.add('transcode', { seconds: Number(seconds) });
  console.log(`${job.id}: added`);
}
await queue.close();
connection.disconnect();
