"""The hall for stores: what is put is kept by a server, under a name that both ends work out."""
