--[[
  Finish a job: its lock goes, and with it its entry and its stalled count where the outcome says so.
  Nothing that bears another token is touched.

  KEYS[1]  lock of the job (string: token)
  KEYS[2]  held (hash: job id -> token)
  KEYS[3]  held-data (hash: job id -> opaque bytes)
  KEYS[4]  held-claim (hash: job id -> "<claim token> <end in ms>")
  KEYS[5]  held-seen (hash: job id -> token)
  KEYS[6]  stalled-count (hash: job id -> "<count> <dead token> <time in ms>")
  ARGV[1]  job id (text)
  ARGV[2]  token (text)
  ARGV[3]  "1": the entry stays for the sweep (the job was interrupted), "2": it stays if another delivery was denied
           for it (the start was never answered, so the job never ran), else "0"
  ARGV[4]  "1": the count stays (the job comes back), else "0"
  Reply    "released", "lost" (another's lock, or the entry is another's, gone or claimed), or
           "gone" (neither lock nor entry: what a repeated release finds when its first reply was lost)
]]
local lockKey, held, heldData, heldClaim, heldSeen, count = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local jobId, token = ARGV[1], ARGV[2]

local holder = redis.call('GET', lockKey)
local entry = redis.call('HGET', held, jobId)
if holder and holder ~= token then
  return 'lost'
end
if not holder then
  if not entry then
    return 'gone'
  end
  if entry ~= token then
    return 'lost'
  end
  local claim = redis.call('HGET', heldClaim, jobId)
  if claim then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    if tonumber(string.match(claim, ' (%d+)$') or 0) > now then
      return 'lost'
    end
  end
end
if holder then
  redis.call('DEL', lockKey)
end
-- A start clears every claim but that mark. What is left otherwise is the claim of a sweeper that died: it took the
-- mark's place, so nobody can tell any more, and the job rather runs twice than never.
local reliedOn = ARGV[3] == '2' and redis.call('HGET', heldClaim, jobId)
if ARGV[3] ~= '1' and not reliedOn and entry == token then
  redis.call('HDEL', held, jobId)
  redis.call('HDEL', heldData, jobId)
  redis.call('HDEL', heldClaim, jobId)
  redis.call('HDEL', heldSeen, jobId)
end
if ARGV[4] ~= '1' then
  redis.call('HDEL', count, jobId)
end
return 'released'
