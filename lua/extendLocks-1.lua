--[[
  Renew many locks of one queue in one call: the frozen script of the lock protocol, shared with other runtimes.
  The life of each lock that still has its token is set back to the full lock duration, and its job leaves the
  stalled set. All other ids are returned.

  The protocol gives this script one key; the lock keys are built from the base key. That is its contract, not a habit
  of ours: in a Redis Cluster the queue or the prefix needs a hash tag.

  KEYS[1]  stalled set of the queue (set of job ids)
  ARGV[1]  base key, "<prefix>:<queue>:" (text)
  ARGV[2]  tokens (msgpack list of text)
  ARGV[3]  job ids (msgpack list of text, one for each token)
  ARGV[4]  lock duration (ms)
  Reply    list of the job ids that were not renewed; empty when all were
]]
local stalledKey = KEYS[1]
local baseKey = ARGV[1]
local tokens = cmsgpack.unpack(ARGV[2])
local jobIds = cmsgpack.unpack(ARGV[3])
local lockDuration = ARGV[4]

local failedJobs = {}
for i = 1, #jobIds do
  local jobId = jobIds[i]
  local lockKey = baseKey .. jobId .. ':lock'
  local token = tokens[i]
  -- A missing lock reads as false, which must not equal a token that was packed as false.
  local currentToken = redis.call('GET', lockKey)
  if currentToken and currentToken == token then
    redis.call('SET', lockKey, token, 'PX', lockDuration)
    redis.call('SREM', stalledKey, jobId)
  else
    table.insert(failedJobs, jobId)
  end
end
return failedJobs
