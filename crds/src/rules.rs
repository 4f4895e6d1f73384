//! Rules in CEL about the networks of a service, with messages that name what is wrong.

/// The alias of the network that a variable stands for.
macro_rules! alias {
    ($network:literal) => {
        concat!("(has(", $network, ".alias) ? ", $network, ".alias : ", $network, ".name)")
    };
}

/// Whether two variables, `n` and `m`, stand for one network under two aliases. The namespace of the service, which
/// is that of a network without one, is not known to a rule.
macro_rules! other {
    () => {
        concat!(
            "n.name == m.name && n.kind == m.kind && ",
            "(has(n.__namespace__) ? n.__namespace__ : '') == (has(m.__namespace__) ? m.__namespace__ : '') && ",
            alias!("n"),
            " != ",
            alias!("m")
        )
    };
}

/// Rule of `spec.networks`: their aliases differ.
pub(crate) const ALIASES_ARE_UNIQUE: &str =
    concat!("self.all(n, self.exists_one(m, ", alias!("m"), " == ", alias!("n"), "))");

/// Message for [`ALIASES_ARE_UNIQUE`], with the first alias that occurs several times.
pub(crate) const ALIAS_OCCURS_TWICE: &str = concat!(
    "'the aliases of the networks must be unique, and a network without alias has its name for one; \"%s\" occurs \
     several times'.format(self.map(n, ",
    alias!("n"),
    ").filter(a, !self.exists_one(n, ",
    alias!("n"),
    " == a)))"
);

/// Rule of `spec.networks`: no network has two aliases.
pub(crate) const NETWORKS_ARE_UNIQUE: &str = concat!("!self.exists(n, self.exists(m, ", other!(), "))");

/// Message for [`NETWORKS_ARE_UNIQUE`], with the first network that has several aliases, and two of them. The API
/// server can estimate what `format` costs, unlike `+` in a list.
pub(crate) const NETWORK_OCCURS_TWICE: &str = concat!(
    "'each network may be listed once; %s %s is listed as %s and %s: keep one of them'.format(self.filter(n, self.exists(m, ",
    other!(),
    ")).map(n, [n.kind, n.name, ",
    alias!("n"),
    ", self.filter(m, ",
    other!(),
    ").map(m, ",
    alias!("m"),
    ")[0]])[0])"
);

/// Rule of `spec`: the network to mirror is one of the networks.
pub(crate) const MIRROR_HAS_A_NETWORK: &str = concat!(
    "!has(self.mirror) || !has(self.mirror.network) || self.networks.exists(n, ",
    alias!("n"),
    " == self.mirror.network)"
);

/// Message for [`MIRROR_HAS_A_NETWORK`], with the alias that no network has.
pub(crate) const MIRROR_HAS_NO_NETWORK: &str =
    "'must be the alias of one of the networks; \"' + self.mirror.network + '\" is not'";
