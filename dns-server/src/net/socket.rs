//! Socket options that neither the standard library nor socket2 supports.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::c_int;

/// Sets a socket option whose value is an integer.
pub(crate) fn set_option(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let value = ptr::from_ref(&value).cast();
    // SAFETY: the descriptor stays open while `socket` is borrowed. `value` points to an int of the
    // given size, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, size_of::<c_int>() as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the value of a socket option that is an integer.
pub(crate) fn get_option(socket: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let (mut value, mut length) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the descriptor stays open while `socket` is borrowed. `value` is an int of the size
    // that `length` states, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
