# Starts a desktop on display :1, and serves it to browsers at port 6080. The display is
# DESKTOP_SIZE pixels, 1280x800 by default.
set -eu
size=${DESKTOP_SIZE:-1280x800}
# The memory may have come from a sandbox whose display had ended.
rm -f /tmp/.X1-lock /tmp/.X11-unix/X1
# The display listens on the loopback, so only what passes the platform reaches it.
Xtigervnc :1 -geometry "$size" -depth 24 -SecurityTypes None -localhost yes -AlwaysShared &
for _ in $(seq 100); do
  [ -e /tmp/.X11-unix/X1 ] && break
  sleep 0.1
done
export DISPLAY=:1 HOME=${HOME:-/root}
cd "$HOME"
dbus-launch --exit-with-session startxfce4 &
websockify --web /usr/share/novnc 0.0.0.0:6080 localhost:5901 &
wait -n # if one ends, the platform starts all again
exit 1
