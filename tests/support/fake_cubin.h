/* Read an image (a cubin) for the fake driver: its SM, kernels, parameters, resources and variables.
 *
 * Promise     No image, however damaged, makes this crash or read outside of the image.
 * Method      The driver does not get the length of an image. So the bytes are copied through /proc/self/mem,
 *             where a bad address is an error and not a signal; everything is read from the copy.
 * Not here    Machine code is not read. Of PTX only the entry names are read; fatbins are refused.
 * Source      cubins of NVRTC 13.5 (ABI 8), .nv.info attributes by their EIATTR numbers. Driver 580 on an H200
 *             gave the same errors, some at the load and some at the first use.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEVICES = 16, KERNEL_ATTRIBUTES = 16 };

struct parameter { unsigned offset, size; };
struct entry {
    char *name;
    int parameter_count, threads_max, registers, local_bytes, shared_bytes, const_bytes, cluster[3];
    struct parameter *parameters;
    int set[MAX_DEVICES][KERNEL_ATTRIBUTES];  /* by cuKernelSetAttribute; 0: not set */
    struct object *kernel, *functions[MAX_DEVICES];
};
struct variable { const char *name; size_t bytes; const unsigned char *initial; };
struct image {
    unsigned char *bytes;
    size_t size;
    uint32_t crc32;
    int sm, error;
    bool is_exact;                /* sm_XYa: this compute capability and no other */
    bool is_malformed;            /* refused at once; other errors wait for the first use */
    Elf64_Shdr *sections;         /* a copy: in the file they need not be aligned */
    unsigned section_count, section_names;
    int entry_count, variable_count;
    struct entry *entries;
    struct variable *variables;
};

static bool peek(const void *from, void *to, size_t size)
{
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    bool is_whole = memory >= 0 && pread(memory, to, size, (off_t)(uintptr_t)from) == (ssize_t)size;
    if (memory >= 0)
        close(memory);
    return is_whole;
}

static uint32_t crc32_of(const unsigned char *bytes, size_t size)
{
    uint32_t crc = ~0u;
    while (size--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
    }
    return ~crc;
}

static unsigned half(const unsigned char *at) { uint16_t value; memcpy(&value, at, 2); return value; }
static uint32_t word(const unsigned char *at) { uint32_t value; memcpy(&value, at, 4); return value; }

static const Elf64_Shdr *section_at(const struct image *image, unsigned index)
{
    return index < image->section_count ? &image->sections[index] : NULL;
}

static const unsigned char *bytes_of(const struct image *image, const Elf64_Shdr *section)
{
    return section && section->sh_type != SHT_NOBITS ? image->bytes + section->sh_offset : NULL;
}

static const char *text_at(const struct image *image, unsigned section_index, uint32_t offset)
{
    const Elf64_Shdr *section = section_at(image, section_index);
    if (!section || section->sh_type != SHT_STRTAB || offset >= section->sh_size)
        return "";
    const char *text = (const char *)image->bytes + section->sh_offset + offset;
    return memchr(text, 0, section->sh_size - offset) ? text : "";
}

static const Elf64_Shdr *section_named(const struct image *image, const char *prefix, const char *name)
{
    for (unsigned i = 0; i < image->section_count; i++) {
        const char *text = text_at(image, image->section_names, image->sections[i].sh_name);
        if (!strncmp(text, prefix, strlen(prefix)) && !strcmp(text + strlen(prefix), name))
            return &image->sections[i];
    }
    return NULL;
}

static const Elf64_Sym *symbol_at(const struct image *image, uint32_t index, const char **name)
{
    const Elf64_Shdr *table = NULL;
    for (unsigned i = 0; i < image->section_count && !table; i++)
        table = image->sections[i].sh_type == SHT_SYMTAB ? &image->sections[i] : NULL;
    if (!table || index >= table->sh_size / sizeof(Elf64_Sym))
        return NULL;
    const Elf64_Sym *symbol = (const Elf64_Sym *)(image->bytes + table->sh_offset) + index;
    *name = text_at(image, table->sh_link, symbol->st_name);
    return symbol;
}

static struct entry *entry_named(const struct image *image, const char *name)
{
    for (int i = 0; i < image->entry_count; i++)
        if (!strcmp(image->entries[i].name, name))
            return &image->entries[i];
    return NULL;
}

static struct entry *add_entry(struct image *image, const char *name, size_t length)
{
    image->entries = realloc(image->entries, (size_t)(image->entry_count + 1) * sizeof *image->entries);
    struct entry *entry = &image->entries[image->entry_count++];
    memset(entry, 0, sizeof *entry);
    entry->name = strndup(name, length);
    entry->threads_max = 1024;
    return entry;
}

static void add_parameter(struct entry *entry, int ordinal, struct parameter parameter)
{
    if (ordinal >= entry->parameter_count) {
        entry->parameters = realloc(entry->parameters, (size_t)(ordinal + 1) * sizeof parameter);
        memset(entry->parameters + entry->parameter_count, 0,
               (size_t)(ordinal + 1 - entry->parameter_count) * sizeof parameter);
        entry->parameter_count = ordinal + 1;
    }
    entry->parameters[ordinal] = parameter;
}

/* Read the records of a section: format, attribute, then a value of two bytes or, in format 4, length and bytes. */
static void read_info(struct image *image, const Elf64_Shdr *section, struct entry *entry)
{
    const unsigned char *at = bytes_of(image, section);
    for (const unsigned char *stop = at ? at + section->sh_size : NULL; at && at + 4 <= stop;) {
        unsigned attribute = at[1], length = at[0] == 4 ? half(at + 2) : 0;
        const unsigned char *value = at + 4;
        const char *name;
        at = value + length;
        if (at > stop)
            return;
        if (entry && attribute == 0x17 && length == 12)  /* KPARAM_INFO: index, ordinal, offset, flags */
            add_parameter(entry, half(value + 4), (struct parameter){half(value + 6), word(value + 8) >> 18});
        else if (entry && (attribute == 5 || attribute == 0x10) && length == 12)  /* MAX_THREADS, REQNTID */
            entry->threads_max = (int)(word(value) * word(value + 4) * word(value + 8));
        else if (entry && attribute == 0x3d && length == 12)  /* CTA_PER_CLUSTER */
            for (int i = 0; i < 3; i++)
                entry->cluster[i] = (int)word(value + 4 * i);
        else if (!entry && (attribute == 0x2f || attribute == 0x11) && length == 8) {
            struct entry *of = symbol_at(image, word(value), &name) ? entry_named(image, name) : NULL;
            if (of)  /* REGCOUNT, FRAME_SIZE */
                *(attribute == 0x2f ? &of->registers : &of->local_bytes) = (int)word(value + 4);
        }
    }
}

static void read_symbol(struct image *image, const Elf64_Sym *symbol, const char *name)
{
    const Elf64_Shdr *section = section_at(image, symbol->st_shndx);
    if (!section || !*name || !symbol->st_shndx)
        return;
    image->is_malformed |= section->sh_type == SHT_NULL;  /* the end of the section table is missing */
    if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_other & 0x10) {  /* STO_CUDA_ENTRY */
        const Elf64_Shdr *shared = section_named(image, ".nv.shared.", name);
        const Elf64_Shdr *constants = section_named(image, ".nv.constant3", "");
        struct entry *entry = add_entry(image, name, strlen(name));
        read_info(image, section_named(image, ".nv.info.", name), entry);
        /* From sm_90 on the section includes 1024 bytes for the system, which the driver does not report. */
        int reserved = image->sm >= 90 ? 1024 : 0;
        entry->shared_bytes = shared && (int)shared->sh_size > reserved ? (int)shared->sh_size - reserved : 0;
        entry->const_bytes = constants ? (int)constants->sh_size : 0;
    } else if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT) {
        const unsigned char *initial = bytes_of(image, section);
        uint64_t bytes = symbol->st_size, start = symbol->st_value;
        bool is_inside = bytes <= section->sh_size && start <= section->sh_size - bytes;
        struct variable variable = {name, bytes, initial && is_inside ? initial + start : NULL};
        image->variables = realloc(image->variables, (size_t)(image->variable_count + 1) * sizeof variable);
        image->variables[image->variable_count++] = variable;
    }
}

/* Copy the file into `image`; false if its headers are invalid. */
static bool copy_elf(const void *code, const Elf64_Ehdr *header, struct image *image)
{
    const uint64_t limit = 1u << 30;
    size_t table_bytes = header->e_shnum * sizeof(Elf64_Shdr), size = header->e_shoff + table_bytes;
    size_t programs_stop = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
    if (!header->e_shnum || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff > limit
        || header->e_phoff > limit)
        return false;
    size = programs_stop > size ? programs_stop : size;
    image->sections = malloc(table_bytes);
    if (!peek((const char *)code + header->e_shoff, image->sections, table_bytes))
        return false;
    for (int i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &image->sections[i];
        size_t stop = section->sh_offset + (section->sh_type == SHT_NOBITS ? 0 : section->sh_size);
        if (section->sh_offset > limit || section->sh_size > limit)
            return false;
        size = stop > size ? stop : size;
    }
    image->bytes = malloc(size);
    image->size = size;
    image->section_count = header->e_shnum;
    image->section_names = header->e_shstrndx;
    const char *name;
    return peek(code, image->bytes, size) && *text_at(image, image->section_names, 1)
        && symbol_at(image, 0, &name);
}

static void read_elf(const void *code, const Elf64_Ehdr *header, struct image *image)
{
    if (!copy_elf(code, header, image)) {
        image->error = 200, image->is_malformed = true;
        image->section_count = 0, image->size = 0;
        return;
    }
    /* Since ABI 8 (CUDA 13) the second byte of the flags is the SM; before, the first. */
    image->sm = header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
    const Elf64_Shdr *compat = section_named(image, ".nv.compat", "");
    const unsigned char *at = bytes_of(image, compat), *stop = at ? at + compat->sh_size : NULL;
    for (; at && at + 4 <= stop; at += 4 + (at[0] == 4 ? half(at + 2) : 0))
        image->is_exact |= at[0] == 2 && at[1] == 9 && at[2] == 1;  /* the only trace of the "a" of sm_90a */
    const char *name;
    const Elf64_Sym *symbol;
    for (uint32_t i = 0; (symbol = symbol_at(image, i, &name)); i++)
        read_symbol(image, symbol, name);
    read_info(image, section_named(image, ".nv.info", ""), NULL);
    image->error = image->is_malformed ? 200 : 0;
}

static void read_ptx(const char *text, struct image *image)
{
    image->size = strlen(text);
    image->bytes = (unsigned char *)strdup(text);
    for (const char *at = strstr(text, ".entry"); at; at = strstr(at, ".entry")) {
        at += strlen(".entry") + strspn(at + strlen(".entry"), " \t\n");
        add_entry(image, at, strcspn(at, "( \t\n"));
    }
}

/* Read the image at `code`. It is never freed: the process may use handles of its kernels until its end. */
static struct image *read_image(const void *code, bool takes_ptx)
{
    struct image *image = calloc(1, sizeof *image);
    Elf64_Ehdr header;
    char start[9] = "";
    bool is_ptx = peek(code, start, 8) && (!strcmp(start, ".version") || !strncmp(start, "//", 2));
    if (is_ptx && takes_ptx)
        read_ptx(code, image);
    else if (is_ptx || !peek(code, &header, sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG)
             || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_CUDA)
        image->error = 200;
    else
        read_elf(code, &header, image);
    image->crc32 = image->size && image->bytes ? crc32_of(image->bytes, image->size) : 0;
    return image;
}

static bool fits(const struct image *image, int compute_capability)
{
    if (!image->sm || image->sm == compute_capability)
        return true;
    return !image->is_exact && image->sm / 10 == compute_capability / 10 && image->sm < compute_capability;
}
