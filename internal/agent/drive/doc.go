// Package drive shows a part of a drive as a file system of the sandbox. The
// kernel of the sandbox asks here, by FUSE; the answers come from the host, over
// a connection that the host makes and makes again after every sleep. What is
// here sleeps with the sandbox: names, numbers and open files; what the files
// have, who may do what, and the credentials are the host's.
package drive
