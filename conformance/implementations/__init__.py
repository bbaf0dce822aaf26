"""What a vendor writes, how it is found and loaded, bridges to frameworks, devices."""
