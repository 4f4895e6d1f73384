//! Only the library that is loaded for the whole program lists devices: its functions are never
//! unloaded.

use multinet_verbs::{Device, Error, Library};

fn devices(library: &Library) -> Result<Vec<Device>, Error> {
    library.devices()
}

fn main() {}
