-- _fresh.lua: enqueue.lua for an owner of whom Redis knows at most pending entries: no presence, nothing ended, nothing parked.
-- Runs before the code shared by the verbs: almost every owner of a rebuild is like this, and defining those functions takes
-- longer than this shortcut.
-- ARGV and reply as in enqueue.lua. Adds the youngest entry first, because a small sorted set is searched from its oldest entry.
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
