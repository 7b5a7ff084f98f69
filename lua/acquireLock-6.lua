--[[
  Start a job: take its lock and write its entry, or say who holds it.
  Idempotent by token: finding our own token means that an earlier call took the lock and its reply was lost.

  KEYS[1]  lock of the job (string: token, under a PX TTL)
  KEYS[2]  held (hash: job id -> token)
  KEYS[3]  held-data (hash: job id -> opaque bytes)
  KEYS[4]  held-claim (hash: job id -> "<claim token> <end in ms>"). A claim that has run out, in the name of the
           entry's token, says that the entry is relied on: a delivery was denied, and may be dropped, for its sake, or
           it took the place of a dead run's entry. Then it stays when its start turns out undecided (releaseLock-6)
  KEYS[5]  held-seen (hash: job id -> token)
  KEYS[6]  fence (counter)
  ARGV[1]  job id (text)
  ARGV[2]  token (text)
  ARGV[3]  lock duration (ms)
  ARGV[4]  entry data (bytes)
  Reply    {1, fence number} when taken,
           {0, holder's token, entry's token or nil, entry's data or nil, ms the lock has left} when held by another
]]
local lockKey, held, heldData, heldClaim, heldSeen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobId, token, lockDuration, data = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function reliedOn(name)
  return 'relied on: ' .. name .. ' 0'
end

local holder, entry = redis.call('GET', lockKey), redis.call('HGET', held, jobId)
if holder and holder ~= token then
  if entry == holder then
    redis.call('HSET', heldClaim, jobId, reliedOn(holder))
  end
  return { 0, holder, entry, redis.call('HGET', heldData, jobId), redis.call('PTTL', lockKey) }
end
redis.call('SET', lockKey, token, 'PX', lockDuration)
redis.call('HSET', held, jobId, token)
redis.call('HSET', heldData, jobId, data)
if entry and entry ~= token then
  redis.call('HSET', heldClaim, jobId, reliedOn(token))
elseif redis.call('HGET', heldClaim, jobId) ~= reliedOn(token) then
  redis.call('HDEL', heldClaim, jobId)
end
redis.call('HDEL', heldSeen, jobId)
return {1, redis.call('INCR', KEYS[6])}
