module mote

go 1.21
