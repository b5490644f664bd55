package sbx_test

import (
	"os"
	"os/signal"
)

func notifyInterrupt(c chan os.Signal) { signal.Notify(c, os.Interrupt) }
