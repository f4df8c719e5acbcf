-- end.lua: entries end without an acknowledgement: expired, or cancelled. What is in flight may be in the vehicle already: it stays,
-- and where it is not acknowledged it ends this way instead of being sent again.
-- KEYS[8] the outcomes stream; not in a cluster, where it lies in another slot
-- An entry that was let go while its publish may be under way counts as in flight until that is over.
-- ARGV[6] '1' to claim the next entry
-- then for each its seq, how it ends, and with KEYS[8] its outcome for the recorder, given where it ends only now; or ''
-- returns {{how each has ended, '0' while it is in flight}, claim's answer…}; an entry that is not known ends, too, so that it
-- cannot come. The same again answers the same: whoever died before it had recorded an outcome asks again.
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
      if type(added) == 'table' then -- what Redis refuses in a script undoes nothing
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
