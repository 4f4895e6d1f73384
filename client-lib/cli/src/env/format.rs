//! Formats of variables. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use clap::ValueEnum;
use multinet_client::Rail;
use multinet_client::env::{Plan, Setting};
use serde_json::{Value, json};

/// Format in which variables are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Commands for a shell, for eval
    Shell,
    /// A .env file
    Dotenv,
    /// JSON, for programs, with the facts about the rails
    Json,
    /// NCCL's configuration file, with NCCL's variables only
    #[value(name = "nccl.conf")]
    NcclConf,
    /// A file for docker run --env-file
    Docker,
}

impl Format {
    /// Returns variables as text, and then comments about the rails and about variables that are
    /// left out.
    ///
    /// The comments are last for `eval $(multinet env)` without quotes: the shell then joins all
    /// lines, of which a `#` ends the rest.
    pub(super) fn text(self, rails: &[&Rail], plan: &Plan) -> anyhow::Result<String> {
        if self == Self::Json {
            return Ok(format!("{}\n", serde_json::to_string_pretty(&json(rails, plan))?));
        }
        let comment = |text: &str| format!("# {}\n", text.replace(['\n', '\r'], " "));
        let is_wanted = |name: &str| self != Self::NcclConf || name.starts_with("NCCL_");
        let values = plan.values().filter(|(name, _)| is_wanted(name));
        let mut text: String = values.map(|(name, value)| self.line(name, value)).collect();
        text.extend(rails.iter().map(|rail| comment(&rail.to_string())));
        for variable in plan.variables.iter().filter(|variable| is_wanted(variable.name)) {
            let name = variable.name;
            text.push_str(&match &variable.setting {
                Setting::Kept(value) => comment(&format!("{name} is set already, to {value}, and stays")),
                Setting::LeftOut(reason) => comment(&format!("{name} is left out: {reason}")),
                _ => String::new(),
            });
        }
        text.extend(plan.lost.iter().chain(&plan.remarks).map(|remark| comment(remark)));
        Ok(text)
    }

    fn line(self, name: &str, value: &str) -> String {
        match self {
            Self::Shell => format!("export {name}={}\n", quoted(value)),
            Self::Dotenv => format!("{name}={}\n", in_dotenv(value)),
            // These two have no quotes: the value is the rest of the line.
            _ => format!("{name}={value}\n"),
        }
    }
}

/// Returns a value as one word of a shell's command line.
pub(crate) fn quoted(value: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:,@%+-".contains(c);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.into(),
        false => format!("'{}'", value.replace('\'', r"'\''")).into(),
    }
}

/// Returns a value of a .env file. Between single quotes nothing is special; between double quotes
/// a backslash escapes.
fn in_dotenv(value: &str) -> Cow<'_, str> {
    match quoted(value) {
        Cow::Borrowed(plain) => plain.into(),
        Cow::Owned(_) if !value.contains('\'') => format!("'{value}'").into(),
        Cow::Owned(_) => {
            let escape = |c: char| if "\"\\$`".contains(c) { format!("\\{c}") } else { c.to_string() };
            format!("\"{}\"", value.chars().map(escape).collect::<String>()).into()
        }
    }
}

fn json(rails: &[&Rail], plan: &Plan) -> Value {
    let of = |choose: fn(&Setting) -> Option<&String>| -> BTreeMap<&str, &String> {
        let chosen = plan.variables.iter().filter_map(|its| Some((its.name, choose(&its.setting)?)));
        chosen.collect()
    };
    json!({
        "rails": rails.iter().map(|rail| rail_json(rail)).collect::<Vec<_>>(),
        "variables": of(|setting| if let Setting::Value(value) = setting { Some(value) } else { None }),
        "kept": of(|setting| if let Setting::Kept(value) = setting { Some(value) } else { None }),
        "leftOut": of(|setting| if let Setting::LeftOut(reason) = setting { Some(reason) } else { None }),
        "lost": plan.lost,
        "remarks": plan.remarks,
    })
}

fn rail_json(rail: &Rail) -> Value {
    let gpus = rail
        .gpus
        .iter()
        .map(|gpu| json!({"number": gpu.number, "pci": gpu.pci, "distance": gpu.distance.to_string()}));
    json!({
        "interface": rail.interface,
        "addresses": rail.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "network": rail.network,
        "mtu": rail.mtu,
        "rdma": rail.rdma.as_ref().ok().map(|place| json!({
            "device": place.device, "port": place.port, "gidIndex": place.index, "gid": place.gid.to_string(),
        })),
        "noRdma": rail.rdma.as_ref().err().map(ToString::to_string),
        "pci": rail.pci,
        "numa": rail.numa,
        "gpus": gpus.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use multinet_client::env::Variable;

    use super::*;

    fn plan() -> Plan {
        let mut plan = Plan::default();
        let variable = |name, setting| Variable { name, setting };
        plan.variables = vec![
            variable("NCCL_SOCKET_IFNAME", Setting::Value("=net1".to_owned())),
            variable("NCCL_IB_GID_INDEX", Setting::Value("7".to_owned())),
            variable("NCCL_IB_HCA", Setting::Kept("=mlx5_2:1".to_owned())),
            variable("UCX_NET_DEVICES", Setting::Value("mlx5_2:1,it's $5 `x`".to_owned())),
            variable("GLOO_SOCKET_IFNAME", Setting::LeftOut("no\nNIC".to_owned())),
        ];
        plan.remarks = vec!["a remark".to_owned()];
        plan
    }

    #[test]
    fn each_format_has_values_and_comments() {
        let cases = [
            (
                Format::Shell,
                "export NCCL_SOCKET_IFNAME='=net1'\nexport NCCL_IB_GID_INDEX=7\n\
                 export UCX_NET_DEVICES='mlx5_2:1,it'\\''s $5 `x`'\n\
                 # NCCL_IB_HCA is set already, to =mlx5_2:1, and stays\n\
                 # GLOO_SOCKET_IFNAME is left out: no NIC\n# a remark\n",
            ),
            (
                Format::Dotenv,
                "NCCL_SOCKET_IFNAME='=net1'\nNCCL_IB_GID_INDEX=7\n\
                 UCX_NET_DEVICES=\"mlx5_2:1,it's \\$5 \\`x\\`\"\n\
                 # NCCL_IB_HCA is set already, to =mlx5_2:1, and stays\n\
                 # GLOO_SOCKET_IFNAME is left out: no NIC\n# a remark\n",
            ),
            (
                Format::NcclConf,
                "NCCL_SOCKET_IFNAME==net1\nNCCL_IB_GID_INDEX=7\n\
                 # NCCL_IB_HCA is set already, to =mlx5_2:1, and stays\n# a remark\n",
            ),
            (
                Format::Docker,
                "NCCL_SOCKET_IFNAME==net1\nNCCL_IB_GID_INDEX=7\nUCX_NET_DEVICES=mlx5_2:1,it's $5 `x`\n\
                 # NCCL_IB_HCA is set already, to =mlx5_2:1, and stays\n\
                 # GLOO_SOCKET_IFNAME is left out: no NIC\n# a remark\n",
            ),
        ];
        for (format, expected) in cases {
            assert_eq!(format.text(&[], &plan()).unwrap(), expected, "{format:?}");
        }
    }

    #[test]
    fn json_has_all_settings_by_kind() {
        let value: Value = serde_json::from_str(&Format::Json.text(&[], &plan()).unwrap()).unwrap();
        assert_eq!(value["variables"]["NCCL_SOCKET_IFNAME"], "=net1");
        assert_eq!(value["kept"]["NCCL_IB_HCA"], "=mlx5_2:1");
        assert_eq!(value["leftOut"]["GLOO_SOCKET_IFNAME"], "no\nNIC");
        assert_eq!((&value["rails"], &value["remarks"][0]), (&json!([]), &json!("a remark")));
    }

    #[test]
    fn a_shell_reads_back_what_is_quoted() {
        for value in ["=net1", "", "a'b", "$(x) `y` \\ \"z\"", "*?~ #", "mlx5_2:1,net1"] {
            let script = format!("printf %s {}", quoted(value));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }
    }
}
