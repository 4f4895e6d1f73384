//! An echo server over UDP, whose cost is that of the kernel alone.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, UdpSocket};

use anyhow::Result;
use nix::sys::socket::{MsgFlags, MultiHeaders};

use super::batch::{BATCH, Batch};

/// The argument that makes this program the echo server.
pub(crate) const ROLE: &str = "echo";

/// Prints its address, and echoes until the parent process ends.
pub(crate) fn serve() -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(io::stdout(), "{}", socket.local_addr()?)?;
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut batch = Batch::new();
    let mut headers = MultiHeaders::preallocate(BATCH, None);
    loop {
        if batch.receive(&socket, MsgFlags::MSG_WAITFORONE)? > 0 {
            batch.send_back(&socket, &mut headers)?;
        }
    }
}
