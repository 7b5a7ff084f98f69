--[[
  Put back the items of a reliable list that were taken by a worker that died before it could start them: taken, with
  neither lock nor entry. An item with either is somebody's, or the sweep's. They have waited for long already, so they go
  to the right end and are taken next.

  KEYS[1]   taken items (list)
  KEYS[2]   where the items go (list)
  KEYS[3]   held (hash: job id -> token)
  KEYS[4…]  locks of the jobs
  ARGV      for each job: job id (text), item (bytes)
  Reply     how many items were moved
]]
local moved = 0
for i = 4, #KEYS do
  local jobId, item = ARGV[(i - 4) * 2 + 1], ARGV[(i - 4) * 2 + 2]
  if redis.call('EXISTS', KEYS[i]) == 0 and redis.call('HEXISTS', KEYS[3], jobId) == 0 then
    -- Pushed first: should the other key not be a list, the script ends here and the item is still where it was.
    redis.call('RPUSH', KEYS[2], item)
    if redis.call('LREM', KEYS[1], 1, item) == 1 then
      moved = moved + 1
    else
      redis.call('RPOP', KEYS[2])
    end
  end
end
return moved
