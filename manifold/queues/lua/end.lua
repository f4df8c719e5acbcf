-- end.lua: end entries without an acknowledgement, because they have expired or were cancelled. An entry in flight may have
-- reached the vehicle, so it stays; if it is not acknowledged, it gets the given outcome instead of being sent again. A released
-- entry whose publish may be under way counts as in flight.
-- KEYS[8] the outcomes stream; absent in a cluster, where it is in another slot
-- ARGV[6] '1' to claim the next entry
-- then, for each entry: seq, code of the outcome, and with KEYS[8] the outcome as JSON, sent if the entry ends now, or ''
-- returns {{code of the outcome of each entry, '0' if it is in flight}, claim's reply…}
-- An unknown entry ends too, so that it cannot come back. A repeated call returns the same, so a caller that crashed before it
-- recorded an outcome can call again.
local held = redis.call('HGET', INFLIGHT, 'seq')
local sent = sent_lately(redis.call('HGET', PRESENCE, SENT))
if sent and not redis.call('ZSCORE', PENDING, sent) then sent = nil end
local ended, compacting = {}, redis.call('EXISTS', COMPACTION) == 1

for i = 7, #ARGV, 3 do
  local seq, how, outcome = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if seq == held or seq == sent then
    redis.call('HSET', ATTEMPTS, mark(seq), how)
    ended[#ended + 1] = '0'
  else
    if redis.call('ZADD', DONE, 'NX', how, seq) == 1 and outcome ~= '' then
      local added = redis.pcall('XADD', KEYS[8], '*', 'o', outcome)
      if type(added) == 'table' then -- an error in a script does not roll back earlier writes
        redis.call('ZREM', DONE, seq)
        return redis.error_reply('OUTCOMES cannot be recorded: ' .. added.err)
      end
    end
    leave(seq)
    ended[#ended + 1] = redis.call('ZSCORE', DONE, seq)
  end
end

if compacting then
  local newest = redis.call('HGETALL', COMPACTION)
  for i = 1, #newest, 2 do
    if redis.call('ZSCORE', DONE, newest[i + 1]) then redis.call('HDEL', COMPACTION, newest[i]) end
  end
end

local following = {'none'}
if ARGV[6] == '1' then following = claim() end
return {ended, unpack(following)}
