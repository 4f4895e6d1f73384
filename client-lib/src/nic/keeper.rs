//! Keeps connections that have been accepted off the default network.

use std::io;
use std::net::IpAddr;

use socket2::SockRef;

use super::interfaces::Interface;
use super::local::local_interfaces;
use super::lookup::Question;
use super::stay::Stay;

/// The interfaces as they were looked up, which is done again only where they do not fit.
#[derive(Debug)]
pub(crate) struct Keeper {
    interfaces: Vec<Interface>,
}

impl Keeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interfaces: local_interfaces()? })
    }

    /// Has what is sent from this address to a peer leave by second NICs, unless the address is one
    /// of the default network itself.
    pub(crate) fn keep(&mut self, socket: &SockRef<'_>, (local, peer): (IpAddr, IpAddr)) -> io::Result<()> {
        // In a VRF it stays there.
        if socket.device()?.is_some() {
            return Ok(());
        }
        let question = Question { from: Some(local), ..Question::plain(peer) };
        let answer = question.answer();
        let index = match &answer {
            Ok(answer) if answer.is_local => return Ok(()),
            Ok(answer) => Some(answer.interface),
            Err(_) => None,
        };
        if index.is_some_and(|index| !self.interfaces.iter().any(|interface| interface.index == index)) {
            self.interfaces = local_interfaces()?;
        }
        let way = self.interfaces.iter().find(|interface| Some(interface.index) == index);
        let stay = match (way, question.entry()) {
            (Some(way), Ok(entry)) if !way.is_default_network => Stay::of(local, &entry, &self.interfaces),
            // There is no way back but the default network's: rather none.
            _ => match self.interfaces.iter().find(|interface| interface.has(local)) {
                Some(own) if !(own.is_loopback || own.is_default_network) => Stay::On(own.name.clone()),
                _ => Stay::Free,
            },
        };
        stay.apply(socket)
    }
}
