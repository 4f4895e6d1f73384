import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Hashtable;
import java.util.List;
import javax.naming.Context;
import javax.naming.NameNotFoundException;
import javax.naming.NamingEnumeration;
import javax.naming.NamingException;
import javax.naming.directory.Attribute;
import javax.naming.directory.DirContext;
import javax.naming.directory.InitialDirContext;

/**
 * Queries Java's resolvers like a program in a pod: {@code java Ask.java SERVER KIND NAME ...} prints a line {@code KIND
 * NAME<tab>ANSWER} per answer. Without an answer, ANSWER is the reason. SERVER is {@code ADDRESS:PORT} for JNDI's resolver, or
 * {@code -} for InetAddress, which has its own server.
 */
class Ask {
    public static void main(String[] words) throws Exception {
        boolean direct = !words[0].equals("-");
        DirContext dns = direct ? connect(words[0]) : null;
        for (int i = 1; i + 1 < words.length; i += 2) {
            for (String answer : direct ? ask(dns, words[i], words[i + 1]) : ask(words[i], words[i + 1])) {
                System.out.println(words[i] + " " + words[i + 1] + "\t" + answer);
            }
        }
    }

    static DirContext connect(String server) throws NamingException {
        Hashtable<String, String> settings = new Hashtable<>();
        settings.put(Context.INITIAL_CONTEXT_FACTORY, "com.sun.jndi.dns.DnsContextFactory");
        settings.put(Context.PROVIDER_URL, "dns://" + server + "/");
        settings.put("com.sun.jndi.dns.timeout.initial", "5000");
        return new InitialDirContext(settings);
    }

    static List<String> ask(DirContext dns, String kind, String name) throws Exception {
        String type = switch (kind) {
            case "ipv4" -> "A";
            case "ipv6" -> "AAAA";
            case "srv" -> "SRV";
            case "txt" -> "TXT";
            case "name" -> "PTR";
            default -> throw new IllegalArgumentException(kind);
        };
        List<String> answers = new ArrayList<>();
        try {
            NamingEnumeration<? extends Attribute> found =
                dns.getAttributes(kind.equals("name") ? reverse(name) : name, new String[] {type}).getAll();
            while (found.hasMore()) {
                for (Object value : Collections.list(found.next().getAll())) {
                    answers.add(plain(kind, (String) value));
                }
            }
        } catch (NameNotFoundException error) {
            return List.of("name not found");
        } catch (NamingException error) {
            return List.of(error.toString());
        }
        return answers.isEmpty() ? List.of("no records") : answers;
    }

    /** Formats an answer like the other clients. */
    static String plain(String kind, String value) {
        return switch (kind) {
            case "txt" -> value.replace(" ", "");
            default -> value.endsWith(".") ? value.substring(0, value.length() - 1) : value;
        };
    }

    static String reverse(String address) throws UnknownHostException {
        byte[] octets = InetAddress.getByName(address).getAddress();
        StringBuilder name = new StringBuilder();
        for (int i = octets.length - 1; i >= 0; i--) {
            int octet = octets[i] & 0xff;
            if (octets.length == 4) {
                name.append(octet).append('.');
            } else {
                name.append(Integer.toHexString(octet & 15)).append('.').append(Integer.toHexString(octet >> 4)).append('.');
            }
        }
        return name + (octets.length == 4 ? "in-addr.arpa." : "ip6.arpa.");
    }

    static List<String> ask(String kind, String name) {
        List<String> answers = new ArrayList<>();
        try {
            switch (kind) {
                case "addresses" -> {
                    for (InetAddress address : InetAddress.getAllByName(name)) {
                        answers.add(address.getHostAddress());
                    }
                }
                case "name" -> answers.add(InetAddress.getByName(name).getCanonicalHostName());
                default -> throw new IllegalArgumentException(kind);
            }
        } catch (UnknownHostException error) {
            return List.of("unknown host");
        }
        return answers;
    }
}
