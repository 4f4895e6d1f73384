//! The library's functions stay loaded, as there is only the one for ever.

use multinet_verbs::{Device, Error, Library};

fn devices(library: &Library) -> Result<Vec<Device>, Error> {
    library.devices()
}

fn main() {}
