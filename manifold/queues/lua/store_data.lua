-- store_data.lua: keep a payload under its data_id, once.
-- KEYS[1] data   ARGV[1] payload   ARGV[2] milliseconds to keep it
-- returns 'stored', 'same' (kept longer now) or 'differs' (other bytes are known under this data_id: nothing was changed)
local known = redis.call('GET', KEYS[1])
if known == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 'same'
end
if known then return 'differs' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'stored'
