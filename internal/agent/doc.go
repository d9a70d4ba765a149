// Package agent serves files, processes, terminals, ports and tools for language
// models inside a sandbox. It is the first process there (PID 1), and any image
// must work with it unmodified: it needs no shell, no user database and no
// library of the image. It only composes: the packages below it do the work, and
// each has one job. None of them imports this one.
//
// It trusts nobody and asks nobody for credentials: who may reach it is decided
// by the edge and by the network in front of it. It never follows a tick: an
// agent without requests and without output costs no processor time.
//
// What always holds:
//
//   - A file is replaced whole or not at all.
//   - A signal never reaches a process that the agent did not start.
//   - The output of a process is bounded on disk, and in memory it is a page.
//   - Every running process has one goroutine that decides its fate.
package agent
