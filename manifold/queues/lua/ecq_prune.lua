-- ecq_prune.lua: acknowledged messages go that were written before an instant.
-- ARGV[6] that instant, Unix ms   returns how many went
local gone = 0
repeat
  local some = prune(tonumber(ARGV[6]))
  gone = gone + some
until some == 0
return gone
