-- ecq_prune.lua: remove acknowledged messages written before a time.
-- ARGV[6] that time, Unix ms   returns the number of messages removed
local gone = 0
repeat
  local some = prune(tonumber(ARGV[6]))
  gone = gone + some
until some == 0
return gone
