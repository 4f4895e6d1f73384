//! What was read where it landed does not outlive the handle, with which the registration may end.

use multinet_verbs::{Error, Landing};

fn beyond(landing: Landing) -> Result<&'static [u8], Error> {
    let landed = landing.landed(0..1)?;
    Ok(&landed)
}

fn main() {}
