//! Datagrams in batches.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, MsgFlags, MultiHeaders, SockaddrIn, SockaddrLike, recvmmsg, sendmmsg, sendmsg,
};

/// Datagrams per system call.
pub(crate) const BATCH: usize = 32;

/// Buffer size of each datagram: more than any reply over UDP here.
const ROOM: usize = 2048;

/// Messages received by one system call, from peers with addresses of type `S`; `()` on connected
/// sockets.
pub(crate) struct Batch<S> {
    headers: MultiHeaders<S>,
    buffers: Box<[[u8; ROOM]; BATCH]>,
    lengths: [usize; BATCH],
    peers: [Option<S>; BATCH],
    count: usize,
}

impl<S: Copy + SockaddrLike> Batch<S> {
    pub(crate) fn new() -> Self {
        Self {
            headers: MultiHeaders::preallocate(BATCH, None),
            buffers: Box::new([[0; ROOM]; BATCH]),
            lengths: [0; BATCH],
            peers: [None; BATCH],
            count: 0,
        }
    }

    /// Receives the waiting datagrams. With [`MsgFlags::MSG_WAITFORONE`] on a blocking socket, it
    /// waits for the first one.
    pub(crate) fn receive(&mut self, socket: &UdpSocket, flags: MsgFlags) -> Result<usize> {
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        self.count = 0;
        match recvmmsg(socket.as_raw_fd(), &mut self.headers, &mut slices, flags, None) {
            Ok(received) => {
                for (place, message) in received.enumerate() {
                    self.lengths[place] = message.bytes;
                    self.peers[place] = message.address;
                    self.count = place + 1;
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.count)
    }

    /// Returns the messages of the last call.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let buffers = self.buffers.iter().zip(self.lengths).take(self.count);
        buffers.map(|(buffer, length)| &buffer[..length.min(ROOM)])
    }
}

impl Batch<SockaddrIn> {
    /// Sends the received datagrams back with the QR bit set, which turns a query into a reply.
    pub(crate) fn send_back(
        &mut self,
        socket: &UdpSocket,
        headers: &mut MultiHeaders<SockaddrIn>,
    ) -> Result<()> {
        for buffer in self.buffers.iter_mut().take(self.count) {
            buffer[2] |= 0x80;
        }
        let mut lengths = self.lengths.iter();
        let slices = self.buffers.each_ref().map(|buffer| {
            let length = lengths.next().map_or(0, |&length| length.min(ROOM));
            [IoSlice::new(&buffer[..length])]
        });
        let slices = slices.iter().take(self.count);
        sendmmsg(socket.as_raw_fd(), headers, slices, self.peers, [], MsgFlags::empty())?;
        Ok(())
    }
}

/// Sends packets of `size` bytes each by one call, as one buffer that the kernel splits (UDP GSO).
/// Returns false if the send buffer was full.
pub(crate) fn send_burst(socket: &UdpSocket, packets: &[u8], size: usize) -> Result<bool> {
    let size = u16::try_from(size)?;
    let control = [ControlMessage::UdpGsoSegments(&size)];
    let sent =
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(packets)], &control, MsgFlags::MSG_DONTWAIT, None);
    match sent {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
