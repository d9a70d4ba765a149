// Package drive keeps drives in a bucket of an S3 service: each has a prefix of its
// own. The rest of a key is the path of a file.
package drive
