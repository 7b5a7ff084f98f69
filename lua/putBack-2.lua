--[[
  Move one item of a reliable list from the list of taken items back to the list it came from, once.
  An item that is no longer taken was finished, or put back by somebody else: then nothing happens.

  KEYS[1]  taken items (list)
  KEYS[2]  where the item goes (list)
  ARGV[1]  item (bytes)
  Reply    1 when it was moved, 0 when it was not there
]]
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  return 0
end
redis.call('LPUSH', KEYS[2], ARGV[1])
return 1
