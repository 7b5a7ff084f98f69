--[[
  Renew one lock. While a cluster moves a slot, the frozen script can miss a live lock because it does not name the
  lock's key; this one names it, so it is sent to the node that has it.

  KEYS[1]  lock of the job (string: token)
  ARGV[1]  token (text)
  ARGV[2]  lock duration (ms)
  Reply    1 when renewed, 0 when the lock is not ours
]]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
