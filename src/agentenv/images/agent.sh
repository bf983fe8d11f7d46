#!/.agentenv/bin/busybox sh
# Starts the agent by this drive's own interpreter and libraries: the image need not have any.
exec /.agentenv/lib/@LOADER@ --library-path /.agentenv/lib /.agentenv/bin/python3 -I -u -m agentenv.guest.agent "$@"
