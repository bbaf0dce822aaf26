"""Array bridges, one file per framework; importing them imports no framework."""
