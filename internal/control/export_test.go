package control

// Flags are the names of all flags.
var Flags = flags[:]
