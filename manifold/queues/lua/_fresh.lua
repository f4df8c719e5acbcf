-- _fresh.lua: a shortcut of enqueue.lua for an owner with no presence, no ended and no parked entries. Almost every owner of a
-- rebuild is like this. The shortcut precedes the shared code of the verbs, because defining those functions takes longer than
-- the shortcut itself.
-- ARGV and the reply are those of enqueue.lua. The youngest entry is added first, because Redis searches a small sorted set from
-- its oldest member.
if ARGV[6] ~= '1' and #ARGV > 6 and #ARGV <= 2006 and redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[6]) == 0 then
  local entries, n = {}, 0
  for i = #ARGV, 7, -1 do
    local seq = ARGV[i]
    entries[n + 1], entries[n + 2] = seq, seq
    n = n + 2
  end
  local queued = redis.call('ZADD', KEYS[1], 'NX', unpack(entries))
  return {queued > 0 and 'queued' or 'known', queued}
end
