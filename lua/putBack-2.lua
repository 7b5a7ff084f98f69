--[[
  Move one item of a reliable list from the list of taken items to another list, once: back to where it came from, or
  to the failed ones. An item that is no longer taken was finished, or put back by somebody else: then nothing happens.

  Items are pushed on the left and taken from the right.

  KEYS[1]  taken items (list)
  KEYS[2]  where the item goes (list)
  ARGV[1]  item (bytes)
  ARGV[2]  "1": to the right end, so that it is taken next; "0": to the left end, behind all that waits
  Reply    1 when it was moved, 0 when it was not there
]]
-- Pushed first: should the other key not be a list, the script ends here and the item is still where it was.
redis.call(ARGV[2] == '1' and 'RPUSH' or 'LPUSH', KEYS[2], ARGV[1])
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  redis.call(ARGV[2] == '1' and 'RPOP' or 'LPOP', KEYS[2])
  return 0
end
return 1
