//! Variables that name interfaces: gloo's and TensorPipe's, in PyTorch.

use super::{Plan, Request};

/// Adds gloo's. Of several interfaces, gloo uses each in turn; every process needs as many.
pub(super) fn gloo(plan: &mut Plan, request: &Request<'_>) {
    plan.add(request, "GLOO_SOCKET_IFNAME", request.interfaces());
}

/// Adds TensorPipe's, which takes one interface.
pub(super) fn tensorpipe(plan: &mut Plan, request: &Request<'_>) {
    let first = request.rails.iter().find_map(|rail| rail.interface.clone());
    plan.add(request, "TP_SOCKET_IFNAME", first.ok_or_else(|| request.none()));
}
