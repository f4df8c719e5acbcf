-- store_data.lua: store a payload under its data_id, unless the data_id has a payload already.
-- KEYS[1] data   ARGV[1] payload   ARGV[2] retention, ms
-- returns 'stored', 'same' (the retention restarts) or 'differs' (the data_id has other bytes, and nothing has changed)
local known = redis.call('GET', KEYS[1])
if known == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 'same'
end
if known then return 'differs' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'stored'
